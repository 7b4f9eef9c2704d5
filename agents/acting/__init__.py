"""Acting with a policy that no longer learns: packed weights, engines that compute, files for elsewhere."""
