-- bury: removes a dead node's registration, unless the node has registered again.
-- DURABILITY none
-- GROWS   no
-- GUARDED more than its first key is touched
-- KEYS    1 the nodes (hash node → "boot seen_ms"); beside it :at, where they are reached, :folder,
--         whose data they have, and :boots, what was buried last
-- ARGV    1 node  2 its dead boot
-- RETURNS 1 or 0
local BOOTS_MAX = 1000 -- nodes may come under another name each time, as pods do
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored and string.match(stored, '^(%d+) ') == ARGV[2] then
  redis.call('HDEL', KEYS[1] .. ':at', ARGV[1])
  redis.call('HDEL', KEYS[1] .. ':folder', ARGV[1])
  redis.call('HDEL', KEYS[1], ARGV[1])
  local boots = KEYS[1] .. ':boots'
  redis.call('HSET', boots, ARGV[1], ARGV[2])
  -- The earliest boot goes: its number is a time long past.
  if redis.call('HLEN', boots) > BOOTS_MAX then
    local all, first = redis.call('HGETALL', boots), 1
    for i = 3, #all, 2 do
      if (tonumber(all[i + 1]) or 0) < (tonumber(all[first + 1]) or 0) then first = i end
    end
    redis.call('HDEL', boots, all[first])
  end
  return 1
end
return 0
