-- forget: removes names from the directory, each only if it still has the place that the caller
-- saw.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the directory's shard  2 the view
-- ARGV    3… per name: name, the place that was seen
-- RETURNS number of names taken out
open()
local gone = 0
for i = 3, #ARGV, 2 do
  if redis.call('HGET', key('names'), ARGV[i]) == ARGV[i + 1] then
    gone = gone + redis.call('HDEL', key('names'), ARGV[i])
  end
end
return finish(gone)
