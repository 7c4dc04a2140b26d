-- lock_release: releases locks and wakes whoever waits for one.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per lock: name, fence
-- RETURNS per lock: its lease number, or 0 when it is not held under that fence
open()
local items = {}
for i = 3, #ARGV, 2 do
  items[#items + 1] = { ARGV[i], int(i + 1, 'fence', 0, 9007199254740991) }
end
local reply = {}
for i = 1, #items do
  local name, fence = unpack(items[i])
  local t, r = locked(name, fence)
  if t then end_lease(name, t, r, 'release') end
  reply[i] = t and r.lease or 0
end
return finish(reply)
