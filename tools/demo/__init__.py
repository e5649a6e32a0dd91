"""The demonstration: several jobs train on real photographs and share one preparation."""
