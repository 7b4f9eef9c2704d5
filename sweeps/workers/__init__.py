"""The processes that train a sweep's runs, on this machine or on others."""
