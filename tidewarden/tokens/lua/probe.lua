-- probe: lease the first ready task of a shard although its queue is paused; those that still live before those that are late.
-- KEYS    1 the shard  2 the view
-- ARGV    3 lease ms
-- RETURNS a list of at most one {id, lease, payload, attempt, deadline_ms, lease_end_ms}
-- Errors  STALE: the caller's boot was declared dead
open()
alive(CALLER)
local lease_ms = int(3, 'lease ms', 1, NEVER)
if now >= S.alarm then promote(100) end
local reply = {}
for word in string.gmatch(S.pris, '%S+') do
  local name = key('ready:' .. word)
  local id = redis.call('ZRANGEBYSCORE', name, '(' .. text(now), '+inf', 'LIMIT', 0, 1)[1] or redis.call('ZRANGE', name, 0, 0)[1]
  local raw = id and record_get(id)
  if raw then
    local t, r = decode(raw), tries_get(id) or fresh_tries()
    redis.call('ZREM', name, id)
    set('taken', S.taken + 1)
    r.lease, r.attempts, r.sticky, r.own, r.lease_ms, r.holder = new_lease(), math.min(r.attempts + 1, 65535), false, true, lease_ms, CALLER
    tries_put(id, r)
    redis.call('ZADD', key('leased:' .. CALLER), text(lease_clock() + lease_ms), id)
    if not has(S.holders, CALLER) then set('holders', with(S.holders, CALLER)) end
    note(now + lease_ms)
    count('taken')
    reply[1] = {id, r.lease, t.payload, r.attempts, t.deadline, now + lease_ms}
    break
  end
end
return finish(reply)
