-- run: puts the task of a schedule now, under an id that names this run; its ticks stay.
-- DURABILITY queue
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 id
-- RETURNS 1 put | 0 kept: it was put under this id before | -1: there is no schedule of this name |
--         -2: this version cannot read it | 'FULL': the shard is at its capacity
open()
effect = 'grows'
local name, id = ARGV[3], ARGV[4]
local row = row_get(name)
if not row then return finish(-1) end
if row.task == '' then return finish(-2) end
local last = string.match(redis.call('HGET', key('runs'), name) or '', '^%d+ %d+ %l+ (%S+)')
if last == id or stored(id) or redis.call('EXISTS', key('done:' .. id)) == 1 then
  return finish(0)
end
if S.capacity > 0 and S.stored >= S.capacity then return finish('FULL') end
put_scheduled(id, row, cmsgpack.unpack(row.task), now, false)
count('put')
set_run(name, id, now, 'hand')
return finish(1)
