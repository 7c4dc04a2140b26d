-- register: registers a node under a boot number greater than any before.
-- DURABILITY none
-- GROWS   no
-- GUARDED more than its first key is touched
-- KEYS    1 the nodes (hash node → "boot seen_ms"); beside it :at (hash node → host:base_port, of
--         those that say so), :boots (hash node → its boot that was buried last), :folder (hash
--         node → its folder's mark)
-- ARGV    1 now_ms (unix; "0": the store's TIME)
--         2 node
--         3 least boot to register with
--         4 where it is reached ("": not told)
--         5 its folder's mark ("": not told)
--         6 ms without a beat after which one of its name and another folder is gone
-- RETURNS its boot; error EXISTS when one of another folder lives under this name
local time = redis.call('TIME')
local now = tonumber(ARGV[1])
if now == 0 then now = math.floor((time[1] * 1000000 + time[2]) / 1000) end
local function text(n) return string.format('%.0f', n) end
local node, at, folders, folder = ARGV[2], KEYS[1] .. ':at', KEYS[1] .. ':folder', ARGV[5]
local stored = redis.call('HGET', KEYS[1], node)
if stored and folder ~= '' then
  -- One that nobody can read is no node's.
  local other, age =
    redis.call('HGET', folders, node) or folder,
    now - tonumber(string.match(stored, '^%d+ (%d+)$') or '0')
  if other ~= folder and math.abs(age) < tonumber(ARGV[6]) then
    local where = redis.call('HGET', at, node)
    return redis.error_reply(
      'EXISTS another node of this name lives' .. (where and ', at ' .. where or '')
    )
  end
end
local known = stored and tonumber(string.match(stored, '^(%d+) ') or '0') or 0
-- Greater than one that was buried, too, although the clock may have been set back since: the
-- shards take nothing from that one.
local buried =
  tonumber(string.match(redis.call('HGET', KEYS[1] .. ':boots', node) or '', '^%d+$') or '0')
local boot = math.max(now, known + 1, buried + 1, tonumber(ARGV[3]))
redis.call('HDEL', at, node) -- a removal first: a full store lets the script go on
redis.call('HSET', KEYS[1], node, text(boot) .. ' ' .. text(now))
if folder ~= '' then redis.call('HSET', folders, node, folder) end
if ARGV[4] ~= '' then redis.call('HSET', at, node, ARGV[4]) end
return boot
