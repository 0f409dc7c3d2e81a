"""Questions of agents and of Corral to people or other agents."""
