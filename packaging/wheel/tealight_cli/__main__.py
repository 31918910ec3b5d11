"""Starts the program `tealight` of this installation with the same arguments."""

import os
import sys
import sysconfig


def program():
    """The path of the program: where installers put the scripts of this environment, of the user or of a target folder."""
    folders = [sysconfig.get_path("scripts")]
    user_scheme = f"{os.name}_user"
    if user_scheme in sysconfig.get_scheme_names():
        folders.append(sysconfig.get_path("scripts", scheme=user_scheme))
    # `pip install --target FOLDER`
    folders.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin"))
    for folder in folders:
        path = os.path.join(folder, "tealight")
        if os.path.isfile(path):
            return path
    sys.exit(f"error: the program tealight is in none of {', '.join(folders)}")


if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
