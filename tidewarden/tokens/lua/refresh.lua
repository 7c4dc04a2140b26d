-- refresh: accounts are wanted fresh now; their tasks go to the front.
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, force 0|1 (1: before its next try is due, and a dead one is tried once more), grant and generation
--         as they were read (0 and 0: whichever they are)
-- RETURNS per account: QUEUED, MOVED (it has been refreshed since it was read), LEASED (somebody is at it), BACKOFF (it failed and waits for its next try), DEAD, GONE (no such account)
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
for i = 3, #ARGV, 4 do int(i + 2, 'grant', 0, COUNT_MAX); int(i + 3, 'generation', 0, COUNT_MAX) end
local reply, item = {}, 0
for i = 3, #ARGV, 4 do
  item = item + 1
  local account, force = ARGV[i], ARGV[i + 1] == '1'
  local raw, t, r = redis.call('HGET', ACCOUNTS, account), task_get(account), tries_get(account)
  local next_try = redis.call('ZSCORE', FAILING, account)
  local head = raw and row_head(raw)
  local grant, generation = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  if not raw then reply[item] = 'GONE'
  elseif generation > 0 and (head.generation ~= generation or head.grant ~= grant) then reply[item] = 'MOVED'
  elseif r and r.holder ~= '' then reply[item] = 'LEASED'
  elseif not force and redis.call('ZSCORE', DEAD, account) then reply[item] = 'DEAD'
  elseif not force and next_try and tonumber(next_try) > now then reply[item] = 'BACKOFF'
  else
    if not (t and t.priority == WANTED and t.due <= now) then
      place(account, token_task(now, head.expires > 0 and head.expires or now + S.urgent_ms, WANTED))
    end
    if hope_for(account) or next_try then redis.call('ZADD', FAILING, text(now), account) end
    reply[item] = 'QUEUED'
  end
end
return finish(reply)
