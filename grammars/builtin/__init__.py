"""The grammars that come with the package: their files, and what needs more than a file."""
