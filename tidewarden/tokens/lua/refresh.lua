-- refresh: moves the tasks of accounts to the front, for somebody wants them refreshed now.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, force ms (0: not forced; else before its next try is due, and a
--         dead one is tried once more, but only once in so many ms), grant (0: whichever) and
--         generation (0: whichever) as they were read
-- RETURNS per account: QUEUED, RECENT (it was forced a moment ago, and will be again when that time
--         has passed), MOVED (it has been refreshed since it was read), LEASED (somebody is at it),
--         BACKOFF (it failed and waits for its next try), DEAD, GONE (no such account)
local FORCED, FORCED_MS_MAX = nil, 60000
-- When an account may be refreshed that somebody wants refreshed by hand: now, or so many ms after
-- it was forced last; noted.
local function forced_at(account, apart_ms)
  local last, at = tonumber(redis.call('ZSCORE', FORCED, account)), now
  -- Else the clock was stepped back.
  if last and math.abs(now - last) <= apart_ms then at = last > now and last or last + apart_ms end
  redis.call('ZREMRANGEBYSCORE', FORCED, '-inf', text(now - FORCED_MS_MAX))
  redis.call('ZADD', FORCED, text(at), account)
  return at
end
open()
FORCED = key('account_forced')
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
for i = 3, #ARGV, 4 do
  int(i + 1, 'force ms', 0, FORCED_MS_MAX)
  int(i + 2, 'grant', 0, COUNT_MAX)
  int(i + 3, 'generation', 0, COUNT_MAX)
end
local reply, item = {}, 0
for i = 3, #ARGV, 4 do
  item = item + 1
  local account, apart_ms = ARGV[i], tonumber(ARGV[i + 1])
  local force = apart_ms > 0
  local raw, t, r = redis.call('HGET', ACCOUNTS, account), task_get(account), tries_get(account)
  local next_try = redis.call('ZSCORE', FAILING, account)
  local head = raw and row_head(raw)
  local grant, generation = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  if not head then
    reply[item] = 'GONE' -- also one whose row nobody here can read
  elseif
    generation > 0 and (head.generation ~= generation or grant > 0 and head.grant ~= grant)
  then
    reply[item] = 'MOVED'
  elseif r and r.holder ~= '' then
    reply[item] = 'LEASED'
  elseif not force and redis.call('ZSCORE', DEAD, account) then
    reply[item] = 'DEAD'
  elseif not force and next_try and tonumber(next_try) > now then
    reply[item] = 'BACKOFF'
  else
    local at = force and forced_at(account, apart_ms) or now
    local anyway = tonumber(next_try) or t and t.due -- when it is tried by itself
    if not (t and t.priority <= WANTED and t.due <= at or at > now and anyway and anyway <= at) then
      local deadline = head.expires > 0 and head.expires or now + S.urgent_ms
      -- It failed: see failed.lua.
      if next_try then deadline = math.max(deadline, math.min(tonumber(next_try), at)) end
      put_task(account, token_task(at, deadline, WANTED))
    end
    if hope_for(account) or next_try and (at == now or tonumber(next_try) > at) then
      redis.call('ZADD', FAILING, text(at), account)
    end
    reply[item] = at > now and 'RECENT' or 'QUEUED'
  end
end
return finish(reply)
