"""Running a program of the user's as one run of a sweep."""
