// The answer view, for gr.HTML. Runs once per mount with Gradio's variables element, props, trigger, watch.
// props.value is made by page.py and cumulative: any update may be skipped, the last one is enough.
// Model text only ever enters the page through textContent.
const root = element.querySelector('.sd'), part = name => root.querySelector('.sd-' + name);
const scroll = part('scroll'), turnsBox = part('turns'), card = part('card');
const gone = new Set();                                   // conversations that were left: what still arrives of them is late
let chat, turns = [], picked = null, stick = true, shown = false, only = '', drawn = {};

const make = (tag, cls, text) => {
  const el = document.createElement(tag);
  if (cls) el.className = cls;
  if (text !== undefined) el.textContent = text;
  return el;
};
const plain = p => p.indexOf('\x1e') < 0 ? p : p.replace(/\x1e([01])/g, (_, d) => d === '0' ? '\x1e' : '\x1f');
const number = c => c === '0' ? 0 : (parseInt(c, 36) - 1) % 16 + 1;   // eight underlines, the same with a line above, then again from the first
const BIDI = /[\u202a-\u202e\u2066-\u2069]/;
const changed = (key, value) => {
  const now = JSON.stringify(value);
  return drawn[key] !== now && (drawn[key] = now, true);
};

// ---------------------------------------------------------------- conversation

class Turn {
  constructor(turn) {
    this.id = turn.id; this.pos = 0; this.n = 0; this.line = null;
    this.box = make('section', 'sd-turn');
    const asked = make('div', 'sd-asked', turn.prompt);
    asked.dataset.label = turn.raw ? 'Text to continue' : 'You';
    this.out = make('div', 'sd-answer');
    Object.assign(this.out, {tabIndex: 0, turn: this});
    this.out.setAttribute('role', 'group');
    this.out.setAttribute('aria-label', 'Answer. Arrow keys go from token to token.');
    this.box.append(asked, this.out);
    turnsBox.append(this.box);
  }

  draw(turn) {
    this.data = turn;
    const end = turn.t.lastIndexOf('\x1f');
    if (end < this.pos) return;
    let frag = document.createDocumentFragment();
    const put = () => {
      (this.line || this.out.appendChild(this.line = make('div'))).append(frag);
      frag = document.createDocumentFragment();
    };
    for (const p of turn.t.slice(this.pos, end).split('\x1f')) {
      const el = make('span', 'tk d' + number(turn.s[this.n] || '0'), plain(p));
      el.dataset.i = this.n++;
      if (BIDI.test(p)) el.classList.add('bidi');         // an open direction override stays inside its token
      frag.append(el);
      if (p.endsWith('\n')) { put(); this.line = null; }  // one block per text line: an append lays out that line only
    }
    put();
    this.pos = end + 1;
    this.out.dataset.n = this.n;
  }
}

const atEnd = () => scroll.scrollTop + scroll.clientHeight >= scroll.scrollHeight - 24;
const follow = () => { if (stick && turns.length && scroll.clientHeight) scroll.scrollTop = scroll.scrollHeight; };
new ResizeObserver(() => { shown = scroll.clientHeight > 0; follow(); }).observe(scroll);

function drawTurns(v) {
  const same = v.turns.length >= turns.length && turns.every((t, i) => t.id === v.turns[i].id && v.turns[i].t.length >= t.pos);
  const fresh = !same || v.turns.length > turns.length || changed('before', v.before);
  if (!same) { turns.forEach(t => t.box.remove()); turns = []; hide(); }
  if (shown) stick = fresh || atEnd();                     // asked before appending: a scroll event would come too late
  if (fresh) {
    turnsBox.querySelectorAll('.sd-before').forEach(el => el.remove());
    turnsBox.prepend(...v.before.map(([role, text]) => make('div', 'sd-before sd-' + (role === 'user' ? 'asked' : 'answer'), text)));
  }
  v.turns.forEach((turn, i) => (turns[i] = turns[i] || new Turn(turn)).draw(turn));
  turns.forEach((t, i) => t.box.classList.toggle('open', i === turns.length - 1 && v.state !== 'done'));
  follow();
}

// ---------------------------------------------------------------- around it

function drawExamples(v) {
  const empty = part('empty');
  empty.hidden = v.turns.length > 0;
  if (!changed('examples', v.examples) || !v.examples.length) return;
  const domains = [...new Set(v.examples.map(e => e[0]))];
  let round = 0;
  const grid = make('div', 'sd-examples'), more = make('button', 'sd-more', 'Other examples');
  const deal = () => grid.replaceChildren(...domains.map(domain => {
    const own = v.examples.filter(e => e[0] === domain), [, prompt] = own[round % own.length];
    const b = make('button', 'sd-example');
    b.append(make('span', 'sd-domain', domain), make('span', 'sd-prompt', prompt));
    b.onclick = () => trigger('example', {prompt});
    return b;
  }));
  more.onclick = () => { round++; deal(); };
  deal();
  empty.replaceChildren(make('p', 'sd-hint', 'Type a prompt below, or start from an example.'), grid, more);
}

function drawLegend(v) {
  const box = part('legend');
  box.hidden = !v.legend.length;
  if (!changed('legend', v.legend)) return;
  const total = v.legend.reduce((sum, e) => sum + e.n, 0), key = v.legend.map(e => e.c + e.name).join();
  if (box.dataset.key !== key) {
    box.dataset.key = key;
    box.replaceChildren(...v.legend.map(e => {
      const b = make('button', 'sd-source');
      b.title = e.about;
      b.onclick = () => single(only === e.c ? '' : e.c);
      b.append(make('span', 'sd-swatch tk d' + number(e.c), 'abc'), make('span', 'sd-name', e.name), make('span', 'sd-count'));
      if (e.colour.length) ['light', 'dark'].forEach((page, i) => root.style.setProperty('--' + page + number(e.c), e.colour[i]));
      b.dataset.c = e.c;
      return b;
    }));
    single('');
  }
  v.legend.forEach((e, i) => {
    box.children[i].querySelector('.sd-count').textContent = e.n + (total ? ' · ' + Math.round(100 * e.n / total) + ' %' : '');
  });
}

function single(c) {
  only = c;
  root.dataset.only = c && 'd' + number(c);
  part('legend').querySelectorAll('button').forEach(b => b.setAttribute('aria-pressed', b.dataset.c === c));
}

function drawFacts(v) {
  const box = part('facts');
  box.hidden = !v.facts.length;
  if (!changed('facts', v.facts)) return;
  if (box.children.length !== v.facts.length) {
    box.replaceChildren(...v.facts.map(([name]) => {
      const cell = make('div', 'sd-fact');
      cell.append(make('dt', '', name), make('dd'));
      return cell;
    }));
  }
  v.facts.forEach(([, value, about], i) => {
    const cell = box.children[i];
    cell.title = about;
    cell.lastChild.textContent = value;
  });
}

function drawFoot(v) {
  if (changed('status', v.status)) part('status').textContent = v.status;
  const bar = part('progress');
  bar.hidden = v.progress === null;
  if (v.progress < 0) bar.removeAttribute('value'); else if (v.progress !== null) bar.value = v.progress;
  if (changed('notices', v.notices)) {
    part('notices').replaceChildren(...v.notices.map(([kind, text]) => {
      const el = make('div', 'sd-notice ' + kind, text);
      el.setAttribute('role', kind === 'error' ? 'alert' : 'status');
      return el;
    }));
  }
  part('link').hidden = !v.run;
  if (!changed('run', v.run) || v.run === null && !v.turns.length && v.state === 'idle' && !drawn.linked) return;
  const url = new URL(location.href);
  if (v.run) url.searchParams.set('run', v.run); else url.searchParams.delete('run');
  part('link').href = url.search || '?';
  history.replaceState(history.state, '', url);
  drawn.linked = true;
}

// ---------------------------------------------------------------- the card of a token

const tokenInfo = el => {
  const {data} = el.closest('.sd-answer').turn, i = +el.dataset.i;
  const blocks = data.b.split(','), p = data.p.split(',')[i], q = data.q.split(',')[i];
  let round = 0, first = 0, accepted = 0, drafted = 0;
  for (; round < blocks.length - 1; round++) {
    [accepted, drafted] = blocks[round].split('/').map(Number);
    if (i <= first + accepted) break;
    first += accepted + 1;
  }
  return {i, p, q, round, accepted, drafted, position: i - first, c: data.s[i]};
};

function describe(el) {
  const t = tokenInfo(el), entry = (props.value.legend || []).find(e => e.c === t.c);
  const own = !t.drafted ? 'plain step, nothing was drafted' : t.accepted < t.drafted ? 'corrected: the draft was rejected here' : 'bonus: every draft was accepted';
  const rows = [
    ['by', t.c === '0' ? 'the target (' + own + ')' : entry ? entry.name : 'drafter ' + t.c],
    ['block', `token ${t.position + 1} of ${t.accepted + 1}` + (t.drafted ? `; ${t.accepted} of ${t.drafted} drafts kept` : '')],
    ['round', String(t.round + 1)],
    ['p', t.p + ' (target)'],
  ];
  if (t.q) rows.push(['q', t.q + ' (drafter)']);
  const visible = el.textContent.replace(/\n/g, '⏎').replace(/\r/g, '␍').replace(/\t/g, '⇥').replace(/^ | $/g, '␣');
  return {visible, c: t.c, rows};
}

function show(el, aloud) {
  if (picked) picked.classList.remove('on');
  (picked = el).classList.add('on');
  const {visible, c, rows} = describe(el), list = make('dl');
  rows.forEach(([name, value]) => list.append(make('dt', '', name), make('dd', '', value)));
  card.replaceChildren(make('div', 'sd-token tk d' + number(c), visible), list);
  if (!card.matches(':popover-open')) card.showPopover();
  const r = el.getClientRects()[0] || el.getBoundingClientRect(), c2 = card.getBoundingClientRect();
  const below = r.bottom + 8 + c2.height < innerHeight;
  card.style.left = Math.max(8, Math.min(r.left, innerWidth - c2.width - 8)) + 'px';
  card.style.top = Math.max(8, below ? r.bottom + 8 : r.top - c2.height - 8) + 'px';
  if (aloud) part('say').textContent = visible + ': ' + rows.map(row => row.join(' ')).join(', ');
}

function hide() {
  if (picked) picked.classList.remove('on');
  picked = null;
  if (card.matches(':popover-open')) card.hidePopover();
}

const tokenOf = e => e.target.closest && e.target.closest('.sd-answer .tk');
turnsBox.addEventListener('pointerover', e => { const el = tokenOf(e); if (el) show(el, false); else if (document.activeElement !== (picked && picked.closest('.sd-answer'))) hide(); });
turnsBox.addEventListener('pointerleave', e => { if (e.pointerType === 'mouse') hide(); });
turnsBox.addEventListener('focusout', hide);
scroll.addEventListener('scroll', hide);

turnsBox.addEventListener('keydown', e => {
  const out = e.target.closest('.sd-answer');
  if (!out || !out.turn || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === 'Escape' && picked) { hide(); return; }
  const tokens = [...out.querySelectorAll('.tk')].filter(el => el.textContent), at = tokens.indexOf(picked);
  const to = {ArrowRight: at + 1, ArrowLeft: at < 0 ? tokens.length - 1 : at - 1, Home: 0, End: tokens.length - 1}[e.key];
  if (to === undefined || !tokens[to]) return;
  e.preventDefault();
  tokens[to].scrollIntoView({block: 'nearest'});
  requestAnimationFrame(() => show(tokens[to], true));     // after the scroll event, which hides the card
});

// ---------------------------------------------------------------- all of it

function draw() {
  const v = props.value;
  if (!v || !v.turns || gone.has(v.chat)) return;
  if (v.chat !== chat) { gone.add(chat); chat = v.chat; }
  render(v);
}

function render(v) {
  drawExamples(v);
  drawLegend(v);
  drawFacts(v);
  drawTurns(v);
  drawFoot(v);
  root.dataset.state = document.body.dataset.specdemo = v.state;
  root.dataset.run = v.run || '';
}

// "New chat" is done here at once: an update of the old one may be on its way, and of two updates only the last is seen.
document.addEventListener('click', e => {
  if (!root.isConnected || !e.target.closest('#new')) return;
  gone.add(chat);
  render({...props.value, state: 'idle', status: '', progress: null, notices: [], before: [], turns: [], legend: [], facts: [], run: null});
});

watch('value', draw);
draw();                                                    // the value may be there before the mount
