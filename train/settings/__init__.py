"""Settings of training by concern; a command's config inherits those that it needs."""
