"""Convert E-VQA's BEM: `python -m reflectune.examples.bem.convert --variables bem.npz --examples bem_logits.json …`.

The docstring of `conversion.py` has the code that makes both files with TensorFlow.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import OutputFolder


class ConvertBemConfig(Settings):
    """Files of the original BEM, and the folder of the converted one."""

    variables: str = setting("", ".npz of the TensorFlow module's variables")
    vocabulary: str = setting("", "vocab.txt of BERT base uncased")
    examples: str = setting("", "JSON list of triples with the original's logits")
    output: OutputFolder = setting("", "checkpoint folder to write")
    names: str = setting("", "JSON mapping of TensorFlow names to PyTorch names, where they are not known")
    dry_run: bool = setting(False, "describe the conversion, and stop")

    @cross_check
    def convert_bem_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        needed = {"variables": self.variables, "vocabulary": self.vocabulary, "examples": self.examples}
        missing = [f"`{key}` is needed" for key, value in {**needed, "output": self.output}.items() if not value]
        files = {key: path for key, path in {**needed, "names": self.names}.items() if path}
        return missing + [f"`{key}`: file not found: {path}" for key, path in files.items() if not Path(path).is_file()]


@command(ConvertBemConfig, writes="output")
def convert_bem(config: ConvertBemConfig) -> None:
    """Convert BEM from TensorFlow."""
    if config.dry_run:
        print(f"would convert {config.variables} to {config.output}, checked on {config.examples}")
        return
    from reflectune.examples.bem.conversion import (  # slow to import: after the config is right
        PUBLISHED,
        convert,
        read_names,
        read_triples,
        read_variables,
    )

    check = convert(
        read_variables(Path(config.variables)),
        Path(config.vocabulary),
        read_triples(Path(config.examples)),
        Path(config.output),
        read_names(Path(config.names)) if config.names else {},
    )
    print(
        f"wrote {config.output}: logits within {check.largest_difference:.2g} of the original's "
        f"(activation {check.activation}, padding {'masked' if check.mask_padding else 'read'})"
    )
    print(f"{check.published} of E-VQA's {len(PUBLISHED)} published examples get the score that its README states")
    if check.published < len(PUBLISHED):
        print("warning: this is not the BEM that E-VQA scores with; make the two inputs again from its own module")


if __name__ == "__main__":
    convert_bem.main()
