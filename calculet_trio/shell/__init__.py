"""The trio shell: performs what the core decides, and nothing else."""
