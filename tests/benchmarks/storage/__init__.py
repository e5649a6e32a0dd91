"""The benchmark of remote storage: the same photographs from an object store and from local files, with bars."""
