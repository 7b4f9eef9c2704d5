"""The families of formats, a file each."""
