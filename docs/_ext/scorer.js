// How the site's search ranks pages: Sphinx's scores, and first the titles and headings with most words of the query.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const inTitle = title.toLowerCase().split(/\W+/);
    const found = words.filter((word) => inTitle.some((other) => other.startsWith(word)));
    return score + (30 * found.length) / Math.max(words.length, 1);
  },
};
