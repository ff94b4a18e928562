module github.com/ddpstep/ddpstep

go 1.25.0
