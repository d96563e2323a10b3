"""The report page: tables, charts and traces as one HTML file."""
