// An authorization server that is not ours: npm's oidc-provider, OpenID-certified. Single-use refresh tokens without grace;
// a second use revokes the whole grant. Started by the `oidc` fixture with ACCOUNTS and LIFE (seconds) in the environment;
// GRANT=client_credentials makes it give tokens to the client itself, for scopes s0, s1 …; they are counted by those.
// REDIRECT, a redirect URI, has people sign in and consent in browsers, as anybody they say they are.
// AUTH and JWKS say how the client proves itself, TLS_CERT and TLS_KEY (files) make it serve TLS and ask for certificates.
// Prints one line of JSON when it serves and ends when its standard input closes. The counters and faults (GET /admin/stats,
// POST /admin/fault) are ours, around the library; they mean the same as in dot_provider.py.
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import https from 'node:https';
import { Provider, errors } from 'oidc-provider';

const { LIFE = '60', ACCOUNTS = '50', PORT = '0', AUTH = 'client_secret_basic', JWKS, TLS_CERT, TLS_KEY, GRANT } = process.env;
const { REDIRECT = 'http://127.0.0.1/cb' } = process.env;
const SCHEME = TLS_CERT ? 'https' : 'http';
const LIFE_S = Number(LIFE);
const DAY_S = 86400;
const CLIENT_ID = 'c0';
const CLIENT_SECRET = 's3cr%t+:/'; // on purpose: HTTP Basic has to carry its form-encoded form (RFC 6749, 2.3.1)
const SCOPE = 'offline_access mail files'; // without openid: it would sign an id_token for each refresh

// The library's own memory keeps 1,000 rows and drops the rest, and its find-then-consume lets two requests through.
const rows = new Map();
const grantRows = new Map(); // grant id -> keys of its refresh tokens
class Store {
  constructor(model) { this.model = model; }
  key(id) { return `${this.model}:${id}`; }
  async upsert(id, payload, ttlS) {
    if (this.model === 'AccessToken') return; // nobody presents one here
    rows.set(this.key(id), { ...payload, goneAt: ttlS ? Date.now() + ttlS * 1000 : Infinity });
    if (this.model === 'RefreshToken') {
      if (!grantRows.has(payload.grantId)) grantRows.set(payload.grantId, new Set());
      grantRows.get(payload.grantId).add(this.key(id));
    }
  }
  async find(id) {
    const row = rows.get(this.key(id));
    return row && row.goneAt > Date.now() ? row : undefined;
  }
  async findByUid(uid) { // of a browser's session, which is looked up at each of its steps
    for (const row of rows.values()) if (row.kind === 'Session' && row.uid === uid) return row;
    return undefined;
  }
  async findByUserCode() { return undefined; }
  async consume(id) {
    const row = rows.get(this.key(id));
    if (!row || row.consumed) throw new errors.InvalidGrant('refresh token already used');
    row.consumed = Math.floor(Date.now() / 1000);
  }
  async destroy(id) { rows.delete(this.key(id)); }
  async revokeByGrantId(grantId) {
    for (const key of grantRows.get(grantId) ?? []) rows.delete(key);
    grantRows.delete(grantId);
  }
}

const provider = new Provider(`${SCHEME}://127.0.0.1:${PORT}`, {
  adapter: Store,
  clients: [{
    client_id: CLIENT_ID, client_secret: CLIENT_SECRET, token_endpoint_auth_method: AUTH,
    ...(JWKS ? { jwks: JSON.parse(JWKS) } : {}),
    ...(GRANT
      ? { grant_types: [GRANT], redirect_uris: [], response_types: [] }
      : { grant_types: ['authorization_code', 'refresh_token'], redirect_uris: [REDIRECT] }),
  }],
  scopes: ['openid', 'offline_access', 'mail', 'files', ...Array.from({ length: Number(ACCOUNTS) }, (_, i) => `s${i}`)],
  ttl: { AccessToken: LIFE_S, ClientCredentials: LIFE_S, RefreshToken: DAY_S, Grant: DAY_S, IdToken: 60 },
  rotateRefreshToken: true,
  issueRefreshToken: async () => true,
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  clientAuthMethods: [AUTH],
  features: {
    devInteractions: { enabled: Boolean(process.env.REDIRECT) },
    clientCredentials: { enabled: Boolean(GRANT) },
    revocation: { enabled: true, allowedPolicy: async (ctx, client, token) => token.clientId === client.clientId },
    mTLS: {
      enabled: Boolean(TLS_CERT),
      selfSignedTlsClientAuth: true,
      getCertificate(ctx) {
        const { raw } = ctx.socket.getPeerCertificate();
        return raw && new X509Certificate(raw);
      },
    },
  },
});

// --- counters, by account and generation
const known = new Map(); // refresh token -> [account, generation]
const accounts = new Map(); // account -> { generation, requests: {}, refreshes: {} }
const answers = {};
const scopes = {}; // scope -> answers, of the client's own tokens
let requests = 0, refreshes = 0, reuse = 0, faults = 0, hits = 0;
const NO_FAULT = { kind: '', every: 1, times: 0, delay_ms: 0, status: 503, retry_after: null };
let fault = NO_FAULT;
const delayed = new Set(); // lets go of who is delayed, when the fault is lifted
const raise = (counts, name) => { counts[name] = (counts[name] ?? 0) + 1; };

function asked(token) {
  requests += 1;
  const [account, generation] = known.get(token) ?? ['?', -1];
  const row = accounts.get(account);
  if (!row) return;
  raise(row.requests, generation);
  if (generation < row.generation) reuse += 1;
}
function answered(token, status, body) {
  raise(answers, body?.error ? `${status} ${body.error}` : `${status}`);
  if (status !== 200 || !known.has(token)) return;
  const [account, generation] = known.get(token);
  const row = accounts.get(account);
  refreshes += 1;
  raise(row.refreshes, generation);
  known.set(body.refresh_token, [account, generation + 1]);
  row.generation = Math.max(row.generation, generation + 1);
}
function alive() {
  const found = new Set();
  for (const [key, row] of rows) if (key.startsWith('RefreshToken:') && !row.consumed) found.add(row.accountId);
  return [...found].sort();
}
function nextFault() {
  if (!fault.kind) return NO_FAULT;
  hits += 1;
  if (hits % fault.every || (fault.times && Math.floor(hits / fault.every) > fault.times)) return NO_FAULT;
  faults += 1;
  return fault;
}
async function text(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts).toString();
}

provider.use(async (ctx, next) => {
  if (ctx.path === '/admin/stats') {
    const living = alive();
    const figures = { requests, refreshes, answers, scopes, live: living.length, alive: living, reuse, faults };
    ctx.body = { accounts: Object.fromEntries(accounts), ...figures };
    return;
  }
  if (ctx.path === '/admin/fault') {
    fault = { ...NO_FAULT, ...JSON.parse((await text(ctx.req)) || '{}') };
    hits = 0;
    if (!fault.kind) {
      for (const goOn of delayed) goOn();
      delayed.clear();
    }
    ctx.body = fault;
    return;
  }
  if (ctx.path !== '/token') { await next(); return; }
  ctx.req.body = await text(ctx.req); // the library takes a body that was read already
  const form = new URLSearchParams(ctx.req.body);
  const token = form.get('refresh_token') ?? '';
  asked(token);
  const { kind, delay_ms: delayMs, status, retry_after: retryAfter } = nextFault();
  if (kind === 'delay') {
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, delayMs);
      delayed.add(() => { clearTimeout(timer); resolve(); });
    });
  }
  if (kind === 'status') {
    ctx.status = status;
    if (retryAfter !== null) ctx.set('Retry-After', String(retryAfter));
    ctx.body = 'busy';
    return;
  }
  if (kind === 'html') { ctx.type = 'html'; ctx.body = '<html><body>Sign in</body></html>'; return; }
  await next();
  answered(token, ctx.status, ctx.body);
  if (GRANT) raise(scopes[form.get('scope')] ??= {}, `${ctx.status}`);
  if (kind === 'drop') ctx.req.socket.destroy();
});

const seeds = [];
const client = await provider.Client.find(CLIENT_ID);
for (let i = 0; !GRANT && i < Number(ACCOUNTS); i += 1) {
  const accountId = `u${i}`;
  const grant = new provider.Grant({ accountId, clientId: CLIENT_ID });
  grant.addOIDCScope(SCOPE);
  const refresh = new provider.RefreshToken({
    accountId, client, grantId: await grant.save(), gty: 'authorization_code', scope: SCOPE, claims: {},
    authTime: Math.floor(Date.now() / 1000),
  });
  const token = await refresh.save();
  seeds.push([accountId, token]);
  known.set(token, [accountId, 0]);
  accounts.set(accountId, { generation: 0, requests: {}, refreshes: {} });
}
provider.on('server_error', (ctx, error) => { console.error(error); });
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
let server;
if (TLS_CERT) {
  const tls = { cert: readFileSync(TLS_CERT), key: readFileSync(TLS_KEY), requestCert: true, rejectUnauthorized: false };
  server = https.createServer(tls, provider.callback()).listen(Number(PORT), '127.0.0.1');
} else server = provider.listen(Number(PORT), '127.0.0.1');
await once(server, 'listening');
const base = `${SCHEME}://127.0.0.1:${server.address().port}`;
console.log(JSON.stringify({ base, token_url: `${base}/token`, client_id: CLIENT_ID, client_secret: CLIENT_SECRET, seeds }));
