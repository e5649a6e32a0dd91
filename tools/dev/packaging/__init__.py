"""Build the packages for users, wheels and the source distribution, and check each in environments of its own."""
