-- release_all: ends leases as releases, whoever holds them, or those of one holder. Sticky ones
-- stay.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most  4 the holder (none: all)
-- RETURNS how many leases ended
open()
local most, ended = int(3, 'tasks', 1, 1000), 0
for holder in string.gmatch(S.holders, '%S+') do
  if not ARGV[4] or holder == ARGV[4] then
    ended = ended + end_leases(holder, most - ended, 'release')
  end
end
return finish(ended)
