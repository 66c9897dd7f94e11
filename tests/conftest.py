"""Makes tests/helpers.py importable from every folder of tests."""
