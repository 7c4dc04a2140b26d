-- provider_change: a provider that was put is removed, or sealed under another key, if it still is
-- the one that was read (see provider_list.lua).
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 the record that was read; empty: whatever is there  5 the record from now on;
--         empty: none
-- RETURNS 1: done | 0: there is another, or none
open()
local name, after = key('providers'), ARGV[5]
local stored = redis.call('HGET', name, ARGV[3])
if not stored or ARGV[4] ~= '' and ARGV[4] ~= stored then return finish(0) end
redis.call('HDEL', name, ARGV[3]) -- a removal first: a full store lets the script go on
if after == '' then
  redis.call('HDEL', key('provider_makers'), ARGV[3])
  local version = tonumber(redis.call('HGET', name, '')) or 0
  redis.call('HSET', name, '', text(math.max(version + 1, now)))
else
  redis.call('HSET', name, ARGV[3], after) -- it says the same: nobody has to read it
end
return finish(1)
