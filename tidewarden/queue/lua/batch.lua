-- batch: runs items of several verbs in one call, so that the record is read and written once for
-- all of them.
-- DURABILITY queue
-- GROWS   no
-- VERBS   put ack take
-- KEYS    1 the shard  2 the view
-- ARGV    3… per part: verb, how many arguments it has, its arguments (as the verb's own file says,
--         from its third on)
-- RETURNS per part: what the verb returns, or its refusal as an error
-- Puts must be the first part: on a full store they are refused only as long as the script has
-- written nothing.
local verbs, all, parts = { put = put, ack = ack, take = take }, ARGV, {}
local at = 3
while at <= #all do
  local verb, n = all[at], tonumber(all[at + 1])
  if not verbs[verb] or not n or n < 1 or at + 1 + n > #all then
    refuse('BADARG the batch does not parse at its argument ' .. text(at))
  end
  if verb == 'put' and #parts > 0 then refuse('BADARG puts are the first part of a batch') end
  parts[#parts + 1] = { verb, at + 2, n }
  at = at + 2 + n
end
open() -- before its parts: one that may not run at all is refused as a whole
joined = true
local reply = {}
for i = 1, #parts do
  local verb, from, n = unpack(parts[i])
  effect = nil
  ARGV = { all[1], CALLER, unpack(all, from, from + math.min(n, 4000) - 1) }
  for j = 4000, n - 1 do
    ARGV[3 + j] = all[from + j]
  end -- `unpack` has a limit
  local ok, answer = pcall(run, verbs[verb])
  -- The other parts' writes need their record.
  if not ok then answer = { err = 'INTERNAL ' .. tostring(answer) } end
  reply[i] = answer
  if verb == 'put' and answer.err then afresh() end -- nothing was written: nothing may be counted
end
ARGV, joined, effect = all, false, nil -- a put without room was refused by itself
open()
return finish(reply)
