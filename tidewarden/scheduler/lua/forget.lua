-- forget: removes names from the directory, each only if it still has the place that the caller
-- saw.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the directory's shard  2 the view
-- ARGV    3… per name: name, the place that was seen, with or without who put it
-- RETURNS number of names taken out
open()
local gone = 0
for i = 3, #ARGV, 2 do
  local place = redis.call('HGET', key('names'), ARGV[i])
  if place and (place == ARGV[i + 1] or string.match(place, '^%S+ %S+') == ARGV[i + 1]) then
    note_maker(place, -1)
    gone = gone + redis.call('HDEL', key('names'), ARGV[i])
  end
end
return finish(gone)
