"""What a page must be for those who do not see it, or do not see it well: checks in JavaScript, for any page."""

from __future__ import annotations

NAMES = """(() => {
  const faults = [], all = selector => [...document.querySelectorAll(selector)];
  const ids = all('[id]').map(it => it.id);
  if (new Set(ids).size != ids.length) faults.push('an id is there twice');
  for (const it of all('input, select')) {
    const labels = [...(it.labels ?? [])].map(each => each.textContent.trim()).join('');
    if (!(it.getAttribute('aria-label') || labels)) faults.push(`no label: ${it.outerHTML}`);
  }
  for (const it of all('button, a, summary'))
    if (!(it.getAttribute('aria-label') || it.textContent.trim())) faults.push(`no name: ${it.outerHTML}`);
  for (const it of all('svg'))
    if (it.getAttribute('role') != 'img' || !it.getAttribute('aria-label')) faults.push(`no text: ${it.outerHTML}`);
  for (const name of ['aria-describedby', 'aria-labelledby'])
    for (const it of all(`[${name}]`))
      for (const id of it.getAttribute(name).split(' '))
        if (!document.getElementById(id)) faults.push(`${name} names ${id}, which is not there`);
  for (const it of all('table'))
    if (!it.caption || !it.querySelector('th[scope=col]')) faults.push('a table without caption or heads');
  for (const it of all('.scroll'))
    if (it.tabIndex != 0 || !it.getAttribute('aria-label')) faults.push('a part that scrolls, without focus or name');
  let level = 0;
  for (const it of all('h1, h2, h3, h4')) {
    const mine = Number(it.tagName[1]);
    if (mine > level + 1) faults.push(`h${mine} after h${level}: ${it.textContent}`);
    level = mine;
  }
  if (all('h1').length != 1 || all('main').length != 1) faults.push('not one h1 and one main');
  if (document.documentElement.lang != 'en') faults.push('the language is not said');
  return faults;
})()"""
"""What lacks a name, a label, a text or a heading; a list of sentences."""

CONTRAST = """(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = rgb => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => sum + part * linear(rgb[at] / 255), 0);
  const paper = it => {
    for (; it; it = it.parentElement) {
      const found = numbers(getComputedStyle(it).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const low = [], words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (words.nextNode()) {
    const it = words.currentNode.parentElement, text = words.currentNode.textContent.trim();
    if (!text || !it.getClientRects().length || it.closest('.hidden, noscript, script')) continue;
    count++;
    const style = getComputedStyle(it);
    const found = ratio(numbers(it.closest('svg') ? style.fill : style.color), paper(it));
    if (found < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) low.push([text, found]);
  }
  for (const it of document.querySelectorAll('input, select')) {
    if (!it.getClientRects().length) continue;
    const style = getComputedStyle(it);
    if (ratio(numbers(style.color), paper(it)) < 4.5) low.push(['the text of', it.id]);
    if (ratio(numbers(style.borderTopColor), paper(it.parentElement)) < 3) low.push(['the border of', it.id]);
  }
  return [count, low, light(paper(document.body))];
})()"""
"""How many texts there are, those with less contrast than WCAG 2.2 asks for at level AA, and how light the paper is."""
