"""What ``make gpu`` does: on an NVIDIA GPU it runs the tests and a short measurement, and writes what came out."""
