"""From a question to finished runs: study files, plans, launchers, and what becomes of them."""
