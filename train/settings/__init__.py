"""The settings of training by concern, of which the commands' configs are put together."""
