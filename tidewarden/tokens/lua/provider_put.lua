-- provider_put: a provider is put, whatever there was under its name (see provider_list.lua).
-- DURABILITY strongest
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 record  5 so many there may be
-- RETURNS the version from now on
open()
local name, most = key('providers'), int(5, 'providers', 1, 100000)
local version = tonumber(redis.call('HGET', name, '')) or 0
if
  redis.call('HEXISTS', name, ARGV[3]) == 0
  and redis.call('HLEN', name) - redis.call('HEXISTS', name, '') >= most
then
  refuse('FULL there are ' .. text(most) .. ' providers that were put, the most that are allowed')
end
-- With the time in it, so that a store which lost its last writes makes no version anew that nodes
-- know as another.
version = math.max(version + 1, now)
redis.call('HSET', name, ARGV[3], ARGV[4], '', text(version))
return finish(text(version))
