-- bury: forget a dead node's registration, unless it has registered again.
-- KEYS    1 the nodes (hash node → "boot seen_ms")
-- ARGV    1 node  2 its dead boot
-- RETURNS 1 or 0
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored and string.match(stored, '^(%d+) ') == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end
return 0
