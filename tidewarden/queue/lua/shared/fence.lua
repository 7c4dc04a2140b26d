-- fence: lets only the leader of the greatest epoch run a leader-only script.

-- Leader-only scripts: a greater epoch is adopted, the same leader runs, any other is refused.
local function fence(epoch, holder)
  if epoch > S.epoch then
    set('epoch', epoch)
    set('sweeper', holder)
  elseif epoch < S.epoch or holder ~= S.sweeper then
    refuse(
      'STALE the fence of ' .. P .. ' is at epoch ' .. text(S.epoch) .. ' held by ' .. S.sweeper
    )
  end
end
