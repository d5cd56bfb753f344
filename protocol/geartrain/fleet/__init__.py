"""A fleet's devices as a person names them: by a name, by labels, and by selectors over these."""
