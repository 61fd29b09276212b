"""How Sphinx makes a site of the documents: tools/site.sh. They stay plain Markdown, whose links lead to files of the repository."""
import pathlib
import posixpath
import re

from sphinx import addnodes

source = pathlib.Path(__file__).resolve().parents[2]
project = "Meshwright"
release = re.search(r"project\(Meshwright VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text())[1]
copyright = "the authors of Meshwright, Apache-2.0"
html_title = f"Meshwright {release}"

extensions = ["myst_parser", "sphinx_copybutton"]
pygments_style, pygments_dark_style = "default", "github-dark"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "plugins/*/README.md", "examples/README.md", "examples/**/README.md", "bench/README.md"]
exclude_patterns = [".*", "build*", "runs"]
myst_heading_anchors = 6  # by GitHub's names
myst_disable_syntax = ["html_block", "html_inline"]  # `<name>` is text
smartquotes = False  # `--` is a flag's
highlight_language = "none"  # of a block that names none

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = html_use_index = html_domain_indices = False
html_sidebars = {"**": ["sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html", "headers.html",
                        "sidebar/scroll-end.html"]}
templates_path = ["."]
copybutton_prompt_text = "$ "


def navigation(app, name, text):
    """The menu has the headings of docs/index.md, and under each the pages that it names there first."""
    if name != root_doc:
        return
    seen = set()
    for section in text[0].split("\n## ")[1:]:
        pages = [p for p in re.findall(r"\]\(([^)#\s]+)\.md\)", section) if not (p in seen or seen.add(p))]
        text[0] += "\n".join(["\n\n```{toctree}", ":hidden:", f":caption: {section.splitlines()[0]}", "", *pages, "```\n"])


def folders(app, tree):
    """A link to a folder leads to the README in it, as where repositories are shown."""
    for link in tree.findall(addnodes.pending_xref):
        readme = posixpath.normpath(posixpath.join(posixpath.dirname(app.env.docname), link["reftarget"], "README"))
        if link["reftype"] == "myst" and not link["refdomain"] and readme in app.env.found_docs:
            link["refdomain"], link["reftarget"], link["reftargetid"] = "doc", readme, None


def setup(app):
    app.connect("source-read", navigation)
    app.connect("doctree-read", folders)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
