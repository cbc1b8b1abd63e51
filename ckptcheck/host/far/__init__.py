"""The one folder of ckptcheck that the far process sees: it goes on its PYTHONPATH."""
