"""Pages of all keys, from `tealight schema` and, for the ranges, `tealight explain`."""

import json
import re

HEADER = ["| key | type | default | |", "|---|---|---|---|"]


def pages(work):
    """(path, title, purpose, text) of each table at the top of the file, and of the keys that stand in none."""
    schema = json.loads(work.output("tealight schema"))
    reference = Reference(work, schema["$defs"])
    alone = {key: value for key, value in schema["properties"].items() if not is_table(value)}
    title = ", ".join(alone)
    purpose = "Keys outside of tables."
    found = [("keys/file.md", title, purpose, f"# Keys outside of tables\n\n{reference.table('', alone, {})}")]
    for key, value in schema["properties"].items():
        if is_table(value):
            purpose = without_name(cell(value["description"]))
            found.append((f"keys/{key}.md", f"[{key}]", purpose, reference.page(key, value)))
    return found


def is_table(value):
    return "$ref" in value or "properties" in value


class Reference:
    def __init__(self, work, definitions):
        self.work, self.definitions = work, definitions

    def page(self, key, value):
        """The keys of the table, and below it a section for each choice and each table in it."""
        self.key, self.described = key, set()
        text = f"# `[{key}]`\n\n{without_name(value['description'])}\n\n"
        if "$ref" in value:
            return text + self.kinds(key, value["$ref"], {}, 2)
        return text + self.settings(key, value["properties"], {}, 2)

    def settings(self, key, properties, kinds, level):
        """A table of settings, and what is in it. `kinds` are the choices that have these settings."""
        text = self.table(key, properties, kinds)
        for name, value in properties.items():
            text += self.section(f"{key}.{name}", value, kinds, level)
        return text

    def section(self, key, value, kinds, level):
        if value.get("type") == "array" and "properties" in value["items"]:
            name, body = f"[[{key}]]", lambda: self.table(key, value["items"]["properties"], kinds)
        elif "properties" in value:
            name, body = f"[{key}]", lambda: self.settings(key, value["properties"], kinds, level + 1)
        elif "$ref" in value:
            name, body = f"[{key}]", lambda: self.kinds(key, value["$ref"], kinds, level + 1)
        else:
            return ""
        target = self.anchor(key, value, kinds)
        if target in self.described:
            return ""
        self.described.add(target)
        return f"{hashes(level)} `{name}` {{#{target}}}\n\n" + body()

    def kinds(self, key, reference, kinds, level):
        text = ""
        target = self.anchor(key, {"$ref": reference}, kinds)
        for kind in self.definitions[definition(reference)]["oneOf"][1:]:
            title = kind["title"]
            text += f"{hashes(level)} `kind = \"{title}\"` {{#{target}-{title}}}\n\n{plain(kind['description'])}\n\n"
            text += self.settings(key, kind["properties"], kinds | {key: title}, level + 1)
        return text

    def table(self, key, properties, kinds):
        rows = [self.row(f"{key}.{name}" if key else name, name, value, kinds)
                for name, value in properties.items() if name != "kind"]
        return "\n".join([*HEADER, *rows]) + "\n\n" if rows else ""

    def row(self, key, name, value, kinds):
        lines = [without_name(cell(value.get("description", "")))]
        lines += [f"`{word['const']}`: {cell(word['description'])}" for word in value.get("oneOf", [])]
        if bounds := self.range_of(key, kinds):
            lines.append(f"*Range*: {bounds}")
        default = value.get("default")
        # Of a table that is a default the kind: its settings have their own defaults.
        default = default["kind"] if isinstance(default, dict) and "kind" in default else default
        default = "" if default is None else f"`{cell(toml(default))}`"
        return f"| `{name}` | {self.type_of(key, value, kinds)} | {default} | {'<br>'.join(filter(None, lines))} |"

    def type_of(self, key, value, kinds):
        if "$ref" in value:
            return f"[choice](#{self.anchor(key, value, kinds)})"
        if "properties" in value:
            return f"[table](#{self.anchor(key, value, kinds)})"
        if "oneOf" in value:
            return "word"
        if value["type"] == "array":
            if "properties" in value["items"]:
                return f"[tables](#{self.anchor(key, value, kinds)})"
            # "list of numbers", "list of lists of numbers"
            inner = self.type_of(key, value["items"], kinds)
            return "list of " + re.sub(r"^(\w+)", r"\1s", inner)
        return {"boolean": "`true`, `false`"}.get(value["type"], value["type"])

    def anchor(self, key, value, kinds):
        """A choice that stands at several keys is described once."""
        if "$ref" in value:
            return definition(value["$ref"]).replace(".", "-")
        return "-".join([key.replace(".", "-"), *kinds.values()])

    def range_of(self, key, kinds):
        """The line `range` of what `explain` says of the key in these kinds."""
        for told in self.work.output(f"tealight explain {key}").split("\n\n\n"):
            of_kinds = re.search(r"^of kind  (.*)", told, re.M)
            alternatives = of_kinds[1].split(", or ") if of_kinds else [""]
            chosen = {f"`{at}` = \"{kind}\"" for at, kind in kinds.items()}
            if any(set(filter(None, one.split(" and "))) <= chosen for one in alternatives):
                found = re.search(r"^range    (.*(?:\n {9}.*)*)", told, re.M)
                return cell(found[1].replace("must be ", "")) if found else ""
        return ""


def without_name(description):
    """The description of a table without the table's name."""
    rest = re.sub(r"^`\[.*?\]+`(: |; |$)", "", description)
    return rest[:1].upper() + rest[1:]


def definition(reference):
    return reference.rsplit("/", 1)[1]


def hashes(level):
    return "#" * min(level, 6)


def plain(text):
    return re.sub(r"\s+", " ", text)


def cell(text):
    """A description on one line of a table."""
    return plain(text).replace("|", "\\|")


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items() if inner is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) and 0 < value < 1e-3 else str(value)
