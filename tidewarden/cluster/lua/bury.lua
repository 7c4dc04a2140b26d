-- bury: forget a dead node's registration, unless it has registered again.
-- GUARDED more than its first key is touched
-- KEYS    1 the nodes (hash node → "boot seen_ms"); beside it :at, where they are reached, :folder, whose data they have, and :boots, what was buried last
-- ARGV    1 node  2 its dead boot
-- RETURNS 1 or 0
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored and string.match(stored, '^(%d+) ') == ARGV[2] then
  redis.call('HDEL', KEYS[1] .. ':at', ARGV[1])
  redis.call('HDEL', KEYS[1] .. ':folder', ARGV[1])
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[1] .. ':boots', ARGV[1], ARGV[2])
  return 1
end
return 0
