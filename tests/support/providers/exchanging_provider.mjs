// An authorization server that is not ours: npm's @jmondi/oauth2-server, which knows RFC 8693. Started by the `exchanging`
// fixture with LIFE (seconds) in the environment, as oidc_provider.mjs is. A subject token `sub-NAME` is NAME's; others are
// nobody's. GET /admin/stats: answers by the subject token that was shown, and the members of the last request.
import { once } from 'node:events';
import http from 'node:http';
import { AuthorizationServer, DateInterval, OAuthException } from '@jmondi/oauth2-server';
import { handleVanillaError, requestFromVanilla, responseToVanilla } from '@jmondi/oauth2-server/vanilla';

const { LIFE = '60' } = process.env;
const CLIENT_ID = 'c0';
const CLIENT_SECRET = 's3cret';
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const client = {
  id: CLIENT_ID, name: CLIENT_ID, secret: CLIENT_SECRET, redirectUris: [], scopes: [], allowedGrants: [EXCHANGE],
};
const server = new AuthorizationServer(
  {
    getByIdentifier: async (id) => { if (id !== CLIENT_ID) throw OAuthException.invalidClient(); return client; },
    isClientValid: async (grant, known, secret) => secret === CLIENT_SECRET && known.allowedGrants.includes(grant),
  },
  {
    issueToken: async (known, scopes, user) => ({
      accessToken: crypto.randomUUID(), accessTokenExpiresAt: new Date(), client: known, scopes, user,
    }),
    persist: async () => {},
  },
  {
    getAllByIdentifiers: async (names) => names.filter((name) => name.startsWith('s')).map((name) => ({ name })),
    finalize: async (scopes) => scopes,
  },
  'a key for its own tokens, which nobody looks at',
  { requiresPKCE: false },
);
server.enableGrantType({
  grant: EXCHANGE,
  processTokenExchange: async ({ subjectToken, subjectTokenType }) => {
    if (!subjectToken.startsWith('sub-') || !subjectTokenType.endsWith(':jwt')) throw OAuthException.invalidGrant('unknown');
    return { id: subjectToken.slice(4) };
  },
}, new DateInterval(`${LIFE}s`));

const answers = {};
let last = {};
async function text(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts).toString();
}
const door = http.createServer(async (request, response) => {
  const body = await text(request);
  if (request.url === '/admin/stats') { response.end(JSON.stringify({ answers, last })); return; }
  last = Object.fromEntries(new URLSearchParams(body));
  let answer;
  try {
    const asked = new Request(`http://${request.headers.host}/token`, { method: 'POST', headers: request.headers, body });
    answer = responseToVanilla(await server.respondToAccessTokenRequest(await requestFromVanilla(asked)));
  } catch (error) { answer = responseToVanilla(handleVanillaError(error)); }
  const said = await answer.text();
  const counts = (answers[last.subject_token] ??= {});
  const kind = answer.status === 200 ? '200' : `${answer.status} ${JSON.parse(said).error}`;
  counts[kind] = (counts[kind] ?? 0) + 1;
  response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(said);
});
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
await once(door.listen(0, '127.0.0.1'), 'listening');
const base = `http://127.0.0.1:${door.address().port}`;
const known = { client_id: CLIENT_ID, client_secret: CLIENT_SECRET, seeds: [] };
console.log(JSON.stringify({ base, token_url: `${base}/token`, ...known }));
