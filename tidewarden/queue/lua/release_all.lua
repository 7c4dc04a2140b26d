-- release_all: ends leases as releases, whoever holds them. Sticky ones stay.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most
-- RETURNS how many leases ended
open()
local most, ended = int(3, 'tasks', 1, 1000), 0
for holder in string.gmatch(S.holders, '%S+') do
  ended = ended + end_leases(holder, most - ended, 'release')
end
return finish(ended)
