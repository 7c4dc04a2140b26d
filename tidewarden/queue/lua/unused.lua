-- unused: whether nobody has used the shard for as long as `expire_ms` of its queue says. Nodes
-- where takes may wait are told that something is ready: those that wait ask, which is a use.
-- DURABILITY none
-- GROWS   no
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- ARGV    3 for so long nobody has looked, and perhaps nobody could use it 0|1
-- RETURNS 1, or 0: it is used, or it is not known yet, or it has schedules, or does not expire
open()
local ASKED_MS = 5000 -- for so long a take that waits may need to ask
local BACK_MS = 60000 -- for so long whoever was cut off may need to come back
local back = int(3, 'gap', 0, 1) == 1
if S.expire_ms == 0 then return finish(0) end
for word in string.gmatch(S.holders, '%S+') do
  if redis.call('EXISTS', key('leased:' .. word)) == 1 then set('used', now) end
end
if redis.call('EXISTS', key('schedules')) == 1 then set('used', now) end
local left = math.min(S.expire_ms, BACK_MS)
if back and now - S.used > S.expire_ms - left then set('used', now - S.expire_ms + left) end
if now - S.used < S.expire_ms then return finish(0) end
if S.waiting ~= '' then
  set('used', now - S.expire_ms + ASKED_MS)
  woke, for_all = true, true
  return finish(0)
end
return finish(1)
