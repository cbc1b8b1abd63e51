"""Stand-ins for engines, trainers and servers; most run in the Python of an engine or trainer."""
