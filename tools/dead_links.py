#!/usr/bin/env python3
"""Every link of HTML or Markdown files to a file, or to a place in one, leads somewhere: dead_links.py FILE_OR_FOLDER..."""
import html, pathlib, re, sys
from urllib.parse import unquote

def files(arguments):
    for path in map(pathlib.Path, arguments):
        yield from (p for p in path.rglob("*") if p.suffix in (".html", ".md")) if path.is_dir() else [path]

def slug(heading):  # as GitHub makes it
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")

texts = {}
def text(path):
    if path not in texts:
        found = path.read_text(errors="replace")
        texts[path] = re.sub(r"```.*?```|`[^`\n]*`", "", found, flags=re.S) if path.suffix == ".md" else found
    return texts[path]

anchors_of = {}
def anchors(path):
    if path not in anchors_of:
        anchors_of[path] = ({slug(h) for h in re.findall(r"^#+ (.*)$", path.read_text(), re.M)} if path.suffix == ".md"
                            else set(re.findall(r'(?:id|name)="([^"]+)"', text(path))))
    return anchors_of[path]

looked_at, dead = 0, []
for page in files(sys.argv[1:]):
    pattern = r"\]\(([^)\s]+)\)" if page.suffix == ".md" else r'(?:href|src)="([^"]+)"'
    for link in re.findall(pattern, text(page)):
        if re.match(r"[a-z]+:", link) or link == "#nested-classes":  # Doxygen's own, where all of them are private
            continue
        looked_at += 1
        name, _, place = unquote(html.unescape(link)).partition("#")
        target = (page.parent / name).resolve() if name else page.resolve()
        if not target.exists():
            dead.append(f"{page}: {link}: no such file")
        elif place and target.suffix in (".html", ".md") and place not in anchors(target):
            dead.append(f"{page}: {link}: no such place there")
print("\n".join(sorted(set(dead))) or f"{looked_at} links lead somewhere")
sys.exit(1 if dead or not looked_at else 0)
