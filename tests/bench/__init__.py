"""The benchmark: several loaders side by side, with one to many jobs at a time."""
