"""MME, POPE, MMBench and LLaVA-W by lmms-eval's runner, before and after reflection: adapter, task and table."""
