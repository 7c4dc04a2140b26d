-- register: a node registers anew, under a boot greater than any before.
-- GUARDED more than its first key is touched
-- KEYS    1 the nodes (hash node → "boot seen_ms"); beside it :at (hash node → host:base_port, of those that say so), :boots (hash node →
--         its boot that was buried last)
-- ARGV    1 now_ms (unix; "0": the store's TIME)  2 node  3 least boot to register with  4 where it is reached ("": not told)
-- RETURNS its boot
local time = redis.call('TIME')
local now = tonumber(ARGV[1])
if now == 0 then now = math.floor((time[1] * 1000000 + time[2]) / 1000) end
local function text(n) return string.format('%.0f', n) end
local node, at = ARGV[2], KEYS[1] .. ':at'
local stored = redis.call('HGET', KEYS[1], node)
local known = stored and tonumber(string.match(stored, '^(%d+) ')) or 0
-- Greater than one that was buried, too, although the clock may have been set back since: the shards take nothing from that one.
local buried = tonumber(redis.call('HGET', KEYS[1] .. ':boots', node) or '0')
local boot = math.max(now, known + 1, buried + 1, tonumber(ARGV[3]))
redis.call('HDEL', at, node) -- a removal first: a full store lets the script go on
redis.call('HSET', KEYS[1], node, text(boot) .. ' ' .. text(now))
if ARGV[4] ~= '' then redis.call('HSET', at, node, ARGV[4]) end
return boot
