// Shortcuts of the whole page, for launch(js=...): Ctrl/Cmd+Enter runs, Esc stops, "/" goes to the prompt, "?" helps.
() => {
  const press = id => { const b = document.querySelector(`#${id}`); if (b && b.offsetParent !== null) b.click(); };
  const typing = el => el.closest && el.closest('input, textarea, select, [contenteditable]');
  const help = document.createElement('dialog');
  help.className = 'sd-help';
  help.setAttribute('aria-label', 'Keyboard shortcuts');
  const rows = [['Ctrl / ⌘ + Enter', 'run'], ['Esc', 'stop, close'], ['/', 'go to the prompt'], ['← →', 'in an answer: from token to token'],
    ['?', 'this list']];
  const list = document.createElement('dl');
  for (const [keys, what] of rows) {
    const dt = document.createElement('dt'), dd = document.createElement('dd');
    dt.append(Object.assign(document.createElement('kbd'), {textContent: keys}));
    dd.textContent = what;
    list.append(dt, dd);
  }
  const close = Object.assign(document.createElement('button'), {textContent: 'Close', onclick: () => help.close()});
  help.append(Object.assign(document.createElement('h2'), {textContent: 'Keyboard'}), list, close);
  document.body.append(help);

  document.addEventListener('keydown', e => {
    if (e.isComposing || help.open) return;
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); e.stopPropagation(); press('run'); }
    else if (e.key === 'Escape' && document.body.dataset.specdemo !== 'idle') press('stop');
    else if (typing(e.target) || e.ctrlKey || e.metaKey || e.altKey) return;
    else if (e.key === '?') help.showModal();
    else if (e.key === '/') { e.preventDefault(); document.querySelector('#prompt textarea').focus(); }
  }, true);  // before the field that has the focus: Enter would tick a checkbox
}
