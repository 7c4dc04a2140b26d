-- kick: buried tasks become ready again, with their attempts, losses and TTL forgotten.
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most  4 id ("": any)  5 prefix of the reason ("": any)  6 rank to go on from
-- RETURNS {moved, rank to go on from | -1}
open()
local most, id, prefix, from = int(3, 'count', 0, 1000), ARGV[4], ARGV[5], int(6, 'rank', 0, NEVER)
local moved, kept = 0, 0
local function kick(name)
  local t, r = task_get(name), tries_get(name)
  if not t then
    kept = kept + 1 -- a stray: passed by, for the next round begins behind it
    return
  end
  redis.call('ZREM', key('buried'), name)
  if r then tries_drop(name) end
  if t.expires > 0 then
    t.expires = 0
    task_put(name, t)
  end
  make_ready(name, t)
  count('kicked')
  moved = moved + 1
end
if id ~= '' then
  if redis.call('ZSCORE', key('buried'), id) then kick(id) end
  return finish({moved, -1})
end
local ids = redis.call('ZRANGE', key('buried'), from, from + 999)
for i = 1, #ids do
  if moved >= most then break end
  local r = prefix ~= '' and tries_get(ids[i])
  if not r or string.sub(r.reason, 1, #prefix) == prefix then kick(ids[i]) else kept = kept + 1 end
end
return finish({moved, #ids == 1000 and from + kept or -1})
