-- provider_put: a provider is put, whatever there was under its name (see provider_list.lua).
-- DURABILITY strongest
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 record; empty: it is only asked whether one may be put
--         5 so many there may be  6 the user who puts it ("": nobody in particular)
--         7 the part of them that one user may put, in thousandths
-- RETURNS the version from now on; error FULL: there are as many as may be, or the user has its
--         share
open()
local name, makers, user = key('providers'), key('provider_makers'), ARGV[6]
local version = tonumber(redis.call('HGET', name, '')) or 0
local new = redis.call('HEXISTS', name, ARGV[3]) == 0
if new then
  local most, mine = int(5, 'providers', 1, 100000), 0
  local there = redis.call('HLEN', name) - redis.call('HEXISTS', name, '')
  if there >= most then
    refuse('FULL there are ' .. text(most) .. ' providers that were put, the most that are allowed')
  end
  for _, maker in ipairs(redis.call('HVALS', makers)) do
    if maker == user then mine = mine + 1 end
  end
  shares().check(
    user, 'providers', 'as many as may be put', mine, there, most, int(7, 'share', 1, 1000)
  )
end
if ARGV[4] == '' then return finish(text(version)) end
-- With the time in it, so that a store which lost its last writes makes no version anew that nodes
-- know as another.
version = math.max(version + 1, now)
redis.call('HSET', name, ARGV[3], ARGV[4], '', text(version))
if new and user ~= '' then redis.call('HSET', makers, ARGV[3], user) end
return finish(text(version))
